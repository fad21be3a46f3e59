"""How results are shown: text, card, SVG."""
