"""What is run while a power mode is measured."""
