"""From prompts to finished trajectories: sampling, parsing, tools, observations."""
