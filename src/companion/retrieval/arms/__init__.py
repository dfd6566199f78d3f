"""One module per family of arms (Methods, "Arms"); a new module here joins the registry by itself."""
