from __future__ import annotations

from datetime import date, datetime
from enum import Enum
from typing import Any, Literal

from penstock import Id, Index, Table
from penstock import Index as Ix

Json = dict[str, Any]
Slug = str


class Level(Enum):
    BEGINNER = "beginner"
    ADVANCED = "advanced"


class Course(Table):
    slug: Slug
    title: str
    teacher: str
    level: Level = Level.BEGINNER
    price: int = 0
    published: bool = False
    opens_at: datetime | None = None
    closes_at: datetime | None = None
    version: int = 1

    by_slug = Index("slug", unique=True)
    by_teacher = Index("teacher", "opens_at")
    by_teacher_only = Index("teacher")  # expect: PEN004
    by_published = Index("published", "price")


class Student(Table):
    email: str
    name: str
    country: str = "cz"
    joined_on: date | None = None

    by_email = Index("email", unique=True)
    by_country = Index("country")
    by_name_and_country = Index("name", "country")


class Enrolment(Table):
    course: Id[Course]
    student: Id[Student]
    state: Literal["open", "done", "left"] = "open"
    score: int = 0

    # The newest enrolments of a course are read by_course, in the order of their creation.
    by_course = Index("course")
    by_course_and_state = Index("course", "state")
    by_student = Index("student", unique=True)
    by_student_and_course = Index("student", "course")


class Lesson(Table):
    course: Id[Course]
    number: int
    body: str = ""

    by_course_number = Ix("course", "number")  # expect: PEN004
    by_course_number_too = Ix("course", "number", "body")
    by_number = Ix("number")


class Answer(Table):
    lesson: Id[Lesson]
    student: Id[Student]
    text: str
    points: int | None = None
    graded_by: str | None = None

    by_lesson = Index("lesson")  # expect: PEN004
    by_lesson_student = Index("lesson", "student")  # expect: PEN004
    by_lesson_student_points = Index("lesson", "student", "points")
    by_grader = Index("graded_by", "points")
    by_points = Index("points", "graded_by")


class Invoice(Table):
    student: Id[Student]
    cents: int
    paid_on: date | None = None
    number: str = ""

    by_student = Index("student")
    by_number = Index("number", unique=True)


class Certificate(Table, name="paper"):
    enrolment: Id[Enrolment]
    url: str = ""
    issued_at: datetime | None = None

    by_enrolment = Index("enrolment", unique=True)


class OldOrder(Table, source="shop.orders", key="number", managed=False):
    number: int
    buyer: str
    day: date

    by_buyer = Index("buyer")  # expect: PEN004
    by_buyer_day = Index("buyer", "day")
