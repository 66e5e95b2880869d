"""Passwords as they stand in znodes: encrypted as Kafka does it, refused without their content."""

from __future__ import annotations

import base64
import random
import re

import pytest

from ottla.broker.config import BrokerConfig, ConfigError, broker_config_from
from ottla.broker.config.password_encoder import CBC, DIGESTS, GCM, MOST_ITERATIONS, UndecodablePassword
from ottla.broker.security.password_encoder import PasswordEncoder

SECRET = "a secret=1"
PASSWORD = "p\u00e4ss,word:\U0001f600"
OF_KAFKA = [
    # Written by org.apache.kafka.security.PasswordEncoder of 3.9.1.
    (
        "initializationVector:ABZ6S9AnnlMA52I+dCkLxA==,keyLength:128,salt:pt3hRKeBN/v1W6IQ2XYy+fa0UySKERm"
        "zYz6FSmlEWcMAWXHXef15llRUBWypLzz71evl/ki0BgFBzjIn6atnbYuZnx6Hmo9r02BaFclM7W/TLq792CJrTESjxV89Z5U"
        "7zvDPUhwfBvPJ3j9TPo/ioXozr7Ej/IT9CglRxvMEs9xFSRXezrgCg3yCrg99r4I+KqlzJ2E0NnwGkINj5Bp2lRVujcMCL90"
        "g1pCOHWJw5k6vWN8N6qNf/itGfWXhp9q9ONdGaGtJ+1b1qdBDj5xg5D+GOV28KiQIuBhPLI/PPNJj0VDa5Mbyodd9dp7+U/3"
        "cHgAM+peNfoV7ttvp3OBYSQ==,keyFactoryAlgorithm:PBKDF2WithHmacSHA512,cipherAlgorithm:AES/CBC/PKCS5"
        "Padding,iterations:1024,passwordLength:12,encryptedPassword:6sMPIf8ouyrrjwh1RUMuew=="
    ),
    (
        "initializationVector:Qy4Rl5XUNpo4pCpGEcfApw==,keyLength:256,salt:rOqA3F2b4hNP3pa6MdE2jGCjB/6AMbf"
        "3NCEeWSFL6c4Luakw+fWnWRJZdFZyuWtpBv+Wsm8/8ss6frnUezvlYSM7XBH8ehzbjMgxOSCCUe5MoCGMs6LrDNz9AyiZx6b"
        "Im/Zxfm9I4U8g50Ji7xwFtKLj4YUOMDNCiPhS8Axe/Qnt747IISC3Ixocplj9nJItmy4SF7fqyFKkum8piiyKqQMdi05XgJD"
        "pbcM9ZFsSbwN8HZsCK2vaTgFSOJhWW5aShDgMOMU3YffJ3HzV3hDYzY6uUpTRTyIwqmLC4HRhKT/9hbfx7aBAHIhq72qhyQl"
        "wP0bGz2kmVFuQDEBIFY6xrA==,keyFactoryAlgorithm:PBKDF2WithHmacSHA256,cipherAlgorithm:AES/CBC/PKCS5"
        "Padding,iterations:1024,passwordLength:12,encryptedPassword:4Y6ElXqLqBWsXYhsJ56m9Q=="
    ),
    (
        "initializationVector:NTJEAu+zqS+rm6Cs,keyLength:128,salt:RsbC90+rPOTfDzBlENi0ei30vr5bcZjXpvcPRSa"
        "WLotAqhDBml9iRaJBSOzQfCj2wBl2QV/AEUrI1z4laRtqWhpReNIH6n74QKLnPoczLE2lQl/puh3rQB5YiUQN91IJUnwTZ3w"
        "G3VdgtYByanbmJhr+o8ge7gpy2r1vMEHhNkZMn5IKIIE97QnYtpqKmsQUUl41vOtAjQJljYIU2OTzLJ9UpNKxd+0fmP9G6/v"
        "43mfhCUSBGUjLPmUJynHh1Mv9ZaSQwctsTbfj4LADI3gt28rD6Fg7LXcExthb6S/fVqDuNNg7XIPDeFHghwBweYpNWWqC4i0"
        "INej1IJ3z/vugAg==,keyFactoryAlgorithm:PBKDF2WithHmacSHA512,cipherAlgorithm:AES/GCM/NoPadding,aut"
        "henticationTagLength:128,iterations:1024,passwordLength:12,encryptedPassword:xyl6qIEv1ggjHf9KwNN"
        "LW5W/jCCmzXmB26T+9KbREw=="
    ),
    (
        "initializationVector:Sqn1UyNhGKsm81B4,keyLength:256,salt:q7ffJ+agkLslevDP4vAZsz3qYOa4dezHfGm6M/A"
        "j1agef42YQ2ZpyL6Of7cPzoiw7SncMzsjjnyGY2dtm2gWxdPRxmkHIuLpxRDU7hWn+7ibJa5mTFSwxfpTKfg9ZVOcIxlp8bn"
        "G39/Q05Zi7IZylhm7gY+J+mJUAaZq54ef1d7uel45SOEQG/04nNiqtf5X2+cy7DFMd27Ym6f62JmW4iIaQx65d5yy/T8bq4R"
        "y2NFaDpQBHJ6q9M3CnrBTzO3qhzyCM76NnPnozl2XvzsGx6ysA+Ja1dw1rfFU+t8Kk92VIq6N2ZWNc9cpQcucXRq0+c39Jmh"
        "dFBvpucObnKL82g==,keyFactoryAlgorithm:PBKDF2WithHmacSHA256,cipherAlgorithm:AES/GCM/NoPadding,aut"
        "henticationTagLength:128,iterations:1024,passwordLength:12,encryptedPassword:TzyJ9Y9M23SyyPenw5l"
        "jqzajalTiKxz4UoePNezuSQ=="
    ),
]


def encoder(secret: str = SECRET, **more: str) -> PasswordEncoder:
    dotted = {f"password.encoder.{key.replace('_', '.')}": text for key, text in more.items()}
    config = broker_config_from(dotted) if more else BrokerConfig()
    return PasswordEncoder(secret, config, random.Random(7).randbytes)


@pytest.mark.parametrize("text", OF_KAFKA, ids=["cbc", "cbc-256", "gcm", "gcm-256"])
def test_a_password_that_kafka_encrypted_is_read(text: str) -> None:
    assert encoder().decode(text) == PASSWORD


@pytest.mark.parametrize("cipher", [CBC, GCM])
@pytest.mark.parametrize("factory", DIGESTS)
@pytest.mark.parametrize("length", ["128", "192", "256"])
def test_a_password_is_read_with_the_secret_alone(cipher: str, factory: str, length: str) -> None:
    wrote = encoder(cipher_algorithm=cipher, keyfactory_algorithm=factory, key_length=length)

    for password in ("", "x", "sixteen letters!", PASSWORD, "long" * 1000):
        text = wrote.encode(password)
        assert encoder().decode(text) == password
        assert password not in text or len(password) < 2


def test_the_same_password_never_has_the_same_text() -> None:
    wrote = encoder()

    assert wrote.encode(PASSWORD) != wrote.encode(PASSWORD)


@pytest.mark.parametrize("text", OF_KAFKA, ids=["cbc", "cbc-256", "gcm", "gcm-256"])
def test_another_secret_reads_nothing(text: str) -> None:
    with pytest.raises(UndecodablePassword, match="not encrypted with this secret"):
        encoder("another").decode(text)


def changed(text: str, name: str, value: str) -> str:
    return re.sub(rf"(^|,){name}:[^,]*", rf"\g<1>{name}:{value}", text)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("cipherAlgorithm", "DES/CBC/PKCS5Padding", "unknown algorithm"),
        ("keyFactoryAlgorithm", "PBKDF2WithHmacMD5", "unknown algorithm"),
        ("keyLength", "64", "unknown algorithm"),
        ("keyLength", "many", "not encrypted"),
        ("iterations", str(MOST_ITERATIONS + 1), "iterations"),
        ("iterations", str(2**31 - 1), "iterations"),
        ("iterations", "0", "iterations"),
        ("salt", "%%%", "not encrypted"),
        ("initializationVector", base64.b64encode(b"short").decode(), "not encrypted"),
        ("encryptedPassword", base64.b64encode(b"x" * 15).decode(), "not encrypted"),
        ("encryptedPassword", "", "not encrypted"),
        ("passwordLength", "3", "its length differs"),
    ],
)
def test_a_damaged_text_is_refused(name: str, value: str, reason: str) -> None:
    for text in (encoder().encode(PASSWORD), encoder(cipher_algorithm=GCM).encode(PASSWORD)):
        with pytest.raises(UndecodablePassword, match=reason) as refused:
            encoder().decode(changed(text, name, value))
        assert "word" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "plain", "a:b", "salt:AA==,iterations:1", "keyLength:128," * 3])
def test_a_text_that_is_no_encrypted_password_is_refused(text: str) -> None:
    with pytest.raises(UndecodablePassword, match="has no "):
        encoder().decode(text)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        (
            "cipher_algorithm",
            "DES/CBC/PKCS5Padding",
            "must be one of AES/CBC/PKCS5Padding",
        ),
        ("keyfactory_algorithm", "PBKDF2WithHmacMD5", "must be one of PBKDF2WithHmacSHA1"),
        ("key_length", "64", "must be one of 128, 192, 256"),
        ("iterations", "1023", "must be at least 1_?024"),
        ("iterations", "10000001", "must be at most 10000000"),
    ],
)
def test_settings_that_no_key_could_be_made_of_are_refused(key: str, value: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        encoder(**{key: value})
