"""Pages of results, paper beside ours, in the forms that readers want."""
