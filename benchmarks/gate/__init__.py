"""How well deciders tell a slower program from noise: the plugin's gate beside its peers, on the same series."""
