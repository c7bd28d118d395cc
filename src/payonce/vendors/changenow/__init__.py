"""ChangeNOW: an exchange that takes one currency at an address of its own and pays another to the client's."""
