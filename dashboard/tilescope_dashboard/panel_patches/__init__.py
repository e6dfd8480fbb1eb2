"""What Panel and Bokeh do not do yet, each for the version that it names."""
