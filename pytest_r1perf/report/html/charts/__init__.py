"""Charts of the HTML report: each file is one kind, with functions that take plain values and give a `Chart`."""
