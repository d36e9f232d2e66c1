"""The addresses of the tests' site: those of the admin, and of another admin site."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from queue_over_sql.contrib.django.admin import TaskAdmin
from queue_over_sql.contrib.django.models import Task

office = admin.AdminSite("office")
office.register(Task, TaskAdmin)
urlpatterns = [path("admin/", admin.site.urls), path("office/", office.urls)]
