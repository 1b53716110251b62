"""A tiny model learns to look things up: a made-up knowledge base, questions of one and two hops, SFT and GRPO."""
