"""Supervised fine-tuning of agents on demonstrations, with the observation mask."""
