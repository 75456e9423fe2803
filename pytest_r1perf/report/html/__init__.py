"""The HTML report: one self-contained page, its charts drawn beforehand as SVG, a kind of chart a file."""
