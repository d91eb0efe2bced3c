"""How networks are trained, whatever the method: a descent loop and averaged weights."""
