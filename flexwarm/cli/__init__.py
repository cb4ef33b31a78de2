"""The command line: parse, call one operation, render its result, exit with its code."""
