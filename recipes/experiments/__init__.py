"""What a wrong mask does to the curve: experiments on the quickstart's task; README.md there has the results."""
