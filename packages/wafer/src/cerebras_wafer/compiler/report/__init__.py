"""The compile report: for programs (`report.json`) and for people (`report.txt`)."""
