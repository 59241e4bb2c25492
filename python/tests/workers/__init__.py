"""Functions that tests start on processes of their own."""
