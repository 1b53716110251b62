"""Records of rollouts, and what shows them."""
