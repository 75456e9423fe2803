"""A session's report as one plain, versioned document: what JSON, Markdown, HTML, exports and notices are made of."""
