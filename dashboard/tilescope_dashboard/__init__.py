"""The Tilescope dashboard: figures (pure: frame to Bokeh), views, and the state they share. Imports neither torch nor triton."""
