"""From the repository to the executed book: papermill, then Jupyter Book."""
