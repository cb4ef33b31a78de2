"""What runs inside the programs of a launch line: put there through the environment, without a change of the program."""
