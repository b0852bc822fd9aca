from django.contrib import admin
from django.urls import include, path
from rest_framework.routers import DefaultRouter

from clinic.api import VisitViewSet

router = DefaultRouter()
router.register("visits", VisitViewSet, basename="visit")
urlpatterns = [path("admin/", admin.site.urls), path("api/", include(router.urls))]
