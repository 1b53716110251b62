"""The trainer, its configuration, and the one file that knows private parts of TRL."""
