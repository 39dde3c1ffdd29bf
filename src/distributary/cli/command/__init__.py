"""What every verb is made of: its declaration, its lake, what it prints and draws."""
