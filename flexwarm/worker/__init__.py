"""The child process of one rank. The parent never imports this package."""
