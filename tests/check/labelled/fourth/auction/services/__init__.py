"""Services hold the rules of the house."""

from auction.services.bidding import BiddingService as BiddingService
from auction.services.settling import Settlement as Settlement
