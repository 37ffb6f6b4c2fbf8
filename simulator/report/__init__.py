"""Charts, timelines and the HTML page of results."""
