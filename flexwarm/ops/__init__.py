"""One file a verb: takes values, returns a frozen result, prints nothing."""
