"""A Django site for ``django_kills``, in the environment of the other libraries.

``LIBRARY`` in the environment names the backend of its tasks, ``DATABASE`` has the entry of
``DATABASES`` as JSON, ``JOURNAL`` is the file that the tasks write.
"""
