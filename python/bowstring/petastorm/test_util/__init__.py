"""What tests of code over a reader use."""
