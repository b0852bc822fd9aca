from penstock import App, Id, Index, Table

app = App()


class Course(Table):
    title: str
    teacher: str
    open: bool = True

    by_teacher = Index("teacher")


class Lesson(Table):
    course: Id[Course]
    position: int
    video: str

    by_course = Index("course", "position")


class Enrolment(Table):
    course: Id[Course]
    student: str
    done: int = 0

    by_course = Index("course")  # lists show the newest first
    by_course_student = Index("course", "student", unique=True)
    by_student = Index("student")  # expect: PEN004
    by_student_done = Index("student", "done")
