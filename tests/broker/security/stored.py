"""Lines of password files that other programs wrote, for tests that read them."""

from typing import Final

# Written by mosquitto_passwd 2.0.11 for the password "right pass".
MOSQUITTO_7: Final = (
    "$7$101$Qth3vz/lwrjfSJux"
    "$hbtj37lyqrVmzidfOX/AxNvAnw5I1ekriQSsnoFXqdXJ32NkhY0cpSjk/ADAYRYWcxLlnmC59KglS3ZzisgUCw=="
)
MOSQUITTO_6: Final = (
    "$6$blx4wAtqU8+TW3bh"
    "$B0wH6yLUY058qdJDgiOG3dBh+AzBj472NXyQE2nznLQt2uGoKakcdtai6PZtWFTG1/DIyOrIeiJGTtS/IKwUlw=="
)
# argon2id by the reference implementation's command, password "password", salt "somesalt":
# from the test vectors of its repository, version 0x13.
ARGON2ID: Final = (
    "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc"
)
# The example of RFC 7677 (password "pencil"), in PostgreSQL's shape.
SCRAM: Final = (
    "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ=="
    "$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
)
