"""Searching as a part of the environment: retrievers, the `search` tool, and the tags of models without tools."""
