BREAKS = []
