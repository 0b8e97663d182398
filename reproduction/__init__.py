"""What audits the paper: its claims held against committed records, and the results page.

Not part of the installed package. `python -m reproduction` renders everything; see README.md.
"""
