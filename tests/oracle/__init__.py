"""Known answers from outside, and what compares the product with them."""
