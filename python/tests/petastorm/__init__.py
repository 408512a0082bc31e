"""bowstring.petastorm, and Petastorm's datasets."""
