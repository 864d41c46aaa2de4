"""A package, so that pytest closes the browser when the tests of this folder are through."""
