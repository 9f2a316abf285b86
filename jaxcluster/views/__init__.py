"""One document for each thing that is shown, as text, as HTML and for the page."""
