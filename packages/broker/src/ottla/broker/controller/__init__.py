"""The controller: one broker of the cluster that chooses leaders and tells everybody."""
