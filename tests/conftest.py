"""What every test starts from."""

import os

# pytest-xdist tells its workers a width of 80. Commands take COLUMNS at its word, and what is tested is the default.
os.environ.pop("COLUMNS", None)
