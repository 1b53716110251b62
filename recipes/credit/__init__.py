"""Which credit learns fastest where credit matters: `python -m recipes.credit`."""
