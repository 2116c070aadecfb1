"""What must hold: the vocabulary, the rules and the theorems of draftproof. Imports nobody."""
