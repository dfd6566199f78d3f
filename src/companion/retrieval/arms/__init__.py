"""One module per family of arms (Protocol section 5); a new module here joins the registry by itself."""
