"""What is wrong with a data set of conversations, found before it trains anything."""
