"""The quickstart: a tiny agent learns two tools, from bad demonstrations and then by GRPO with the environment mask."""
