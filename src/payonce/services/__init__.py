"""The services that move money; each is a folder with the same rooms."""
