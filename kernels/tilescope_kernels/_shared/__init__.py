"""What several families use. Private to the package."""
