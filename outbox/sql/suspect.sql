-- Part of the lists: whether an event may be the cause of crashes, because it was reclaimed so often in a row.
reclaims >= 3
